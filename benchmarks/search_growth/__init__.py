"""How the time of search grows with layers and devices."""
