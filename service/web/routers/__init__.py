"""Routers of the pages, one per resource."""
