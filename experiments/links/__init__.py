"""Commands behind emulated slow links, and what is measured there. Begin with `command`.

`step_times` and `collective_times` are the programs that ranks run; `calibrate`, `matrix`, `overlap` and `bottleneck`
start them.
"""
