"""Declares the error of the figure."""


class FigureError(Exception):
    """The figure cannot be brought up, or does not do what it should; says why."""
