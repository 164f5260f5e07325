"""The worker of flows that tests kill."""

from batuta import App
from batuta.flows.workflow import Flows
from batuta.webhooks.addresses import AddressPolicy

APP = App(**Flows(policy=AddressPolicy(["127.0.0.1"])).parts())
