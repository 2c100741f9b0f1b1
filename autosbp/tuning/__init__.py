"""Tuning by trials (AutoDist, Algorithm 1): strategies are sampled, ranked by a learned model, and measured on real ranks."""
