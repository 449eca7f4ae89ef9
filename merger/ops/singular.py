"""Singular values and vectors of task vectors that are matrices.

Everything comes from the eigenvectors of the smaller Gram matrix, in float64: that is as accurate as an SVD
in float32 (an error of about 1e-8 of the largest singular value), holds one square matrix of the
smaller dimension instead of three matrices, and is up to four times faster where a matrix is not square.
Randomized sketches are ten times faster but wrong in the second digit when a third or an eighth of a
slowly falling spectrum is kept, as it is here.

LAPACK and BLAS are repeatable: one processor gives the same bytes for any number of workers, since each computes
with one thread. Another processor may round otherwise.

Matrices are worked on in place and in slices of columns, "wide": with the smaller dimension first (`wide`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from merger.ops.columns import Number
from merger.ops.deltas import scaled
from merger.types import Split, TensorContext

NEGLIGIBLE = 2.0**-19
"""Singular values below this share of the largest are rounding errors of float32, and count as 0."""

SLICE_ELEMENTS = 1 << 21
"""Elements that are widened to float64 together."""

KEPT_BYTES = 32 << 20


def is_matrix(context: TensorContext) -> bool:
    """Whether a tensor is a linear map: two dimensions, and its rows do not stand for tokens."""
    return len(context.shape) == 2 and 0 not in context.shape and not context.output_weight.is_embed


def matrices_whole(context: TensorContext) -> Split:
    """Matrices in one piece, all other tensors anywhere."""
    return "tensor" if is_matrix(context) else "elements"


def square_bytes(context: TensorContext, squares: int) -> int:
    """Bytes of so many square float64 matrices of the smaller dimension, and of the slices that are widened.

    Freed pieces of up to 32 MiB often stay with the C library's allocator, so small squares count twice.
    """
    if not is_matrix(context):
        return 0
    square = 8 * min(context.shape) ** 2
    return squares * (square + min(square, KEPT_BYTES)) + 3 * 8 * SLICE_ELEMENTS


def wide(matrix: Tensor) -> Tensor:
    """The matrix or its transpose, whichever has no more rows than columns, sharing memory."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def weighted_changes(deltas: Sequence[Tensor], weights: Sequence[Number]) -> list[Tensor]:
    """The task vectors times their weights, in place, without those of weight 0."""
    return [scaled(delta, weight) for delta, weight in zip(deltas, weights, strict=True) if weight != 0]


def take_non_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Flat indices of the elements where any tensor is not finite; there all of them become 0."""
    found = [torch.empty(0, dtype=torch.int64, device=tensor.device) for tensor in tensors[:1]]
    for tensor in tensors:
        if not all(bool(end.isfinite()) for end in torch.aminmax(tensor)):
            found.append((~tensor.isfinite()).reshape(-1).nonzero().reshape(-1))
    places = torch.cat(found)
    for tensor in tensors if places.numel() else ():
        tensor.view(-1)[places] = 0.0
    return places


def put_non_finite(tensor: Tensor, places: Tensor) -> Tensor:
    """NaN at the places that `take_non_finite` found."""
    if places.numel():
        tensor.view(-1)[places] = torch.nan
    return tensor


def slices(*matrices: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The matrices below each other, a few columns at a time: which columns, and a float64 copy of them."""
    count = matrices[0].shape[1]
    step = max(1, SLICE_ELEMENTS // max(1, sum(len(matrix) for matrix in matrices)))
    for start in range(0, count, step):
        columns = slice(start, min(start + step, count))
        parts = [matrix[:, columns].to(torch.float64) for matrix in matrices]
        yield columns, torch.cat(parts).contiguous()


def gram(*matrices: Tensor) -> Tensor:
    """``m m^T`` in float64, m being the matrices below each other."""
    rows = sum(len(matrix) for matrix in matrices)
    total = torch.zeros(rows, rows, dtype=torch.float64, device=matrices[0].device)
    for _, part in slices(*matrices):
        total.add_(part @ part.T)
    return total


def write_product(left: Tensor, right: Sequence[Tensor], out: Tensor) -> Tensor:
    """``left`` times the matrices below each other, computed in float64; ``out`` may be one of them."""
    for columns, part in slices(*right):
        out[:, columns] = left @ part
    return out


def eigenpairs(square: Tensor, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """Roots of the eigenvalues of a Gram matrix, ascending, and its eigenvectors, without those of 0.

    Args:
        square: float64; overwritten.
        floor: roots up to this count as 0.

    Returns:
        ``[directions]`` and ``[rows, directions]``.
    """
    values, vectors = torch.linalg.eigh(square)
    roots = values.clamp_(min=0.0).sqrt_()
    floor = max(floor, NEGLIGIBLE * float(roots[-1]))
    first = int((roots <= floor).sum())
    return roots[first:], vectors[:, first:]


def inverse_root(square: Tensor) -> Tensor:
    """``g^(-1/2)`` of a Gram matrix on the space where it is not 0, and 0 elsewhere."""
    roots, vectors = eigenpairs(square)
    return (vectors / roots) @ vectors.T


def flatten_spectrum(matrix: Tensor) -> Tensor:
    """Give every singular direction of a matrix the mean of its singular values, in place.

    The mean is over as many values as the matrix has rank: where it is singular, the directions that
    it does not have would be arbitrary. So ``U S V^T`` becomes ``mean(S) U V^T``.
    """
    flat = wide(matrix)
    values, vectors = eigenpairs(gram(flat))
    if not values.numel():
        return matrix.zero_()
    write_product((vectors * (values.mean() / values)) @ vectors.T, [flat], flat)
    return matrix


@dataclass(frozen=True)
class Directions:
    """Some singular directions ``left diag(values) right`` of a wide matrix.

    Attributes:
        left: ``[rows, directions]``, float64, orthonormal columns.
        values: ``[directions]``, float64.
        right: ``[directions, columns]``, orthonormal rows.
    """

    left: Tensor
    values: Tensor
    right: Tensor


def strongest(matrix: Tensor, count: int, floor: float = 0.0) -> Directions:
    """The largest singular directions of a wide matrix, whose memory ``right`` takes over.

    Args:
        matrix: ``[rows, columns]``, rows <= columns; overwritten.
        count: how many; fewer when the rank is smaller.
        floor: singular values up to this count as 0.
    """
    values, vectors = eigenpairs(gram(matrix), floor) if count else _none_of(matrix)
    first = max(0, len(values) - count)
    values, left = values[first:], vectors[:, first:].clone()
    right = matrix[: len(values)]
    return Directions(left, values, write_product((left / values).T, [matrix], right))


def _none_of(matrix: Tensor) -> tuple[Tensor, Tensor]:
    nothing = torch.empty(len(matrix), 0, dtype=torch.float64, device=matrix.device)
    return nothing[0], nothing


def recombined(parts: Sequence[Directions], values: Tensor, out: Tensor) -> Tensor:
    """``U diag(values) V`` with the orthonormal U and V closest to all parts' vectors side by side.

    They are the polar factors ``U (U^T U)^(-1/2)``, the solution of the orthogonal Procrustes problem. Vectors that
    depend on others linearly share what they span.

    Args:
        parts: directions of wide matrices of one shape.
        values: of all directions, in the parts' order.
        out: a wide matrix; may be one whose memory a part uses.
    """
    left = torch.cat([part.left for part in parts], dim=1)
    if not left.shape[1]:
        return out.zero_()
    rights = [part.right for part in parts]
    core = (left @ inverse_root(left.T @ left)) * values
    return write_product(core @ inverse_root(gram(*rights)), rights, out)


def remove_outputs(matrix: Tensor, shared: Directions) -> Tensor:
    """Take out of a matrix, in place, what it puts into some directions of its output space (dimension 0).

    Args:
        matrix: ``[outputs, inputs]``.
        shared: directions of a matrix of this shape, made wide.
    """
    if matrix.shape[0] <= matrix.shape[1]:
        return write_product(_complement(shared.left), [matrix], matrix)
    flat, rows = wide(matrix), matrix.shape[1]
    overlap = torch.zeros(rows, len(shared.right), dtype=torch.float64, device=matrix.device)
    for _, part in slices(flat, shared.right):
        overlap.add_(part[:rows] @ part[rows:].T)
    for columns, part in slices(flat, shared.right):
        flat[:, columns] = part[:rows].sub_(overlap @ part[rows:])
    return matrix


def _complement(left: Tensor) -> Tensor:
    """``1 - U U^T``."""
    projection = (left @ left.T).neg_()
    projection.diagonal().add_(1.0)
    return projection
