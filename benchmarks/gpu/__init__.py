"""One GPU: predictions compared with measurements (see ``__main__``)."""
