"""Training of a GPT-2 under plans against one device."""
