"""Tests of packaging/home-assistant: its files, its program, and clients that act as Home
Assistant.
"""
