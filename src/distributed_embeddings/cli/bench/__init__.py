"""Benchmarks: suites are data, competitors are live processes that take turns, reports are JSON and Markdown."""
