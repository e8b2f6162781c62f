"""One step of a 7-point stencil; the border stays as it is."""


def reference(box, center, side):
    out = box.copy()
    around = box[:-2, 1:-1, 1:-1] + box[2:, 1:-1, 1:-1] + box[1:-1, :-2, 1:-1] + box[1:-1, 2:, 1:-1]
    around = around + box[1:-1, 1:-1, :-2] + box[1:-1, 1:-1, 2:]
    out[1:-1, 1:-1, 1:-1] = center * box[1:-1, 1:-1, 1:-1] + side * around
    return out
