"""Times of calls on a CUDA device: medians, of one CUDA graph over distinct layers too."""
import statistics

import torch

L2_BYTES = 60 * 2**20


def layers_for(layer_bytes, most):
    """Layers that together hold six times the L2 cache, so that no call finds its own there."""
    return max(2, min(most, -(-6 * L2_BYTES // layer_bytes)))


def median_us(call, runs):
    """Median microseconds between events around the call."""
    times = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


class LayersGraph:
    """`call(layer)` of each layer, recorded once behind one another."""

    def __init__(self, call, layers):
        self.layers = layers
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for layer in range(layers):
                call(layer)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for layer in range(layers):
                call(layer)
        self.graph.replay()
        torch.cuda.synchronize()

    def us(self, runs):
        """Median microseconds of a layer."""
        return median_us(self.graph.replay, runs) / self.layers


def graph_us(call, layers, runs=7):
    return LayersGraph(call, layers).us(runs)
