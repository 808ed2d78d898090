"""What makes two runs the same run: hashes of content, never of file locations.

A store returns a result for a key without asking again, so two different computations must not share one. The code of
builder, modules, loss and metric is read, and everything that it reaches; what cannot be read is named in a warning.
"""

from isotherm.tasks.identity.parts import model_id, model_parts, module_attributes

__all__ = ["model_id", "model_parts", "module_attributes"]
