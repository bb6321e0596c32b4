// The two ends of a Laplacian's spectrum without all between, for graphs whose matrix is too large to decompose.
#pragma once

#include "base/result.h"
#include "capacity/graph.h"
#include "plan/spectrum.h"

namespace dthrottle::plan {

// lambda_2 and lambda_n, each within 1e-8 of itself, by the Lanczos method on the sparse matrix. Where eigenvalues
// crowd at an end, as in rings, paths and grids, Lanczos works on the inverse there: such graphs are thin, so that a
// sparse factor of the matrix is small. Fails if neither converges. The same graph gives the same digits. REQUIRES:
// connected, two nodes or more.
Result<Ends> FindEnds(const Graph& graph);

}    // namespace dthrottle::plan
