"""Starting ranks on this machine: torchrun-like launch, fork server, JSON gather."""
