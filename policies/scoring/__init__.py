"""Tensor code of the scored policies, reached by dotted name so that planners never import torch."""
