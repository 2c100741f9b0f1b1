"""The service under kills: are accepted jobs lost, run twice or stuck when its processes die?"""
