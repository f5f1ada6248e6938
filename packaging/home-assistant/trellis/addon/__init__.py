"""The program of the app for Home Assistant.

Read in this order: options (the options of the app become settings of the broker), supervisor (Home
Assistant learns the address of the broker), __main__ (both together, and the broker's process).
"""
