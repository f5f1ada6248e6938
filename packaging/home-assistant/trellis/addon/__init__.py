"""The program of the app for Home Assistant, which starts the broker.

options      makes settings of the broker from the options of the app
supervisor   tells Home Assistant and other apps the address of the broker
__main__     uses both, and runs the broker as a child process
"""
