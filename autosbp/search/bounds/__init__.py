"""What no strategy of a structure takes less than: stages that wait, messages, and memory, at any price of it."""
