"""One router for the pages of each resource."""
