"""The worker of the flow with a step of every type, which tests kill."""

from batuta import App
from batuta.flows.workflow import Flows
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.every import double_it

APP = App(flows=Flows(policy=AddressPolicy(["127.0.0.1"]), activities=[double_it]))
