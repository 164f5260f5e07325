"""The PostgreSQL store passes the shipped suite."""

from batuta.testing import conformance

globals().update(conformance.suite())
