"""Handlers: from a typed request to the store and back to an answer, one file for each family of ops.

A handler reads its request, asks the store, shapes the reply. It decides nothing about records, and raises what went
wrong; turning that into a reply is dispatch.py's.
"""
