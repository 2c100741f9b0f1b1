"""Exports of winning plans to other trainers, their loss, and the trainers' own parsers."""
