"""Durability, as the core sees it. Reading order: contract, state, memory."""
