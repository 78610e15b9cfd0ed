"""Emulated slow links on one machine: runs behind them, and measurements of them."""
