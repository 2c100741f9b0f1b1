"""Growth of search time with layers and devices."""
