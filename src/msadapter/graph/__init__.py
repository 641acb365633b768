"""Static graphs: one call of a function recorded, lowered to MindSpore primitives, compiled, and run instead of it."""
