"""Competitors' processes, and what both sides share. No file here imports the library: peers have an own Python."""
