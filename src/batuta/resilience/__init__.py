"""Makes calls safe to repeat and safe to fail."""

from batuta.resilience.breakers.gate import Breaker, breaker
from batuta.resilience.limits.edge import EdgeLimit
from batuta.resilience.limits.gate import PartnerLimit, partner_limit
from batuta.resilience.limits.rules import Bucket

__all__ = ["Breaker", "Bucket", "EdgeLimit", "PartnerLimit", "breaker", "partner_limit"]
