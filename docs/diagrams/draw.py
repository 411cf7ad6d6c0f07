"""Draws the pictures of docs/parallelism.md: who holds what, and what is sent when.

python docs/diagrams/draw.py
    writes every SVG of this folder anew; needs matplotlib
"""

import matplotlib.pyplot as plt
from others import accumulation, context, data_parallel, pipeline
from ways import ddp, fsdp2, hybrid, tensor, tensor_and_data

if __name__ == "__main__":
    plt.rcParams.update({"font.family": "DejaVu Sans", "svg.fonttype": "path", "svg.hashsalt": "diagrams"})
    for draw in (ddp, fsdp2, hybrid, tensor, tensor_and_data, accumulation, data_parallel, pipeline, context):
        draw()
