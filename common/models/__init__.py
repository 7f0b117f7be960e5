"""Architectures as data: initial weights, cuts into stages and shards, operations counted."""
