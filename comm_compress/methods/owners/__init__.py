"""The method `owners`: gradients are summed by owners of whole submatrices. Importing it registers the method."""

from comm_compress.methods.owners import method

__all__ = ["method"]
