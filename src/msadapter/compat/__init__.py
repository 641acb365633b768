"""MSAdapter's functional style on PyTorch's own objects: what `import msadapter.pytorch as torch` adds.

    loss_and_grads = mindspore.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
    (loss, logits), grads = loss_and_grads(data, label)
    optimizer(grads)
    print(loss.asnumpy())

`table.py` lists every name that is wrapped or added. A call without a torch object goes to MindSpore's function
as it is. docs/msadapter_style.md is the manual.
"""

import sys

_installed = False


def install() -> None:
    """Add the torch half of the table now, and the MindSpore half when `mindspore` is imported. Safe to call twice."""
    global _installed
    if _installed:
        return
    _installed = True
    from ..graph import switches
    from ..imports import when_imported
    from . import table, wrap

    wrap.extend_torch(table.TORCH)

    def mindspore_half():
        wrap.wrap_mindspore(table.MINDSPORE)
        switches.install(sys.modules["mindspore"])

    when_imported("mindspore", mindspore_half)
