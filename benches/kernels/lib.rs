//! Empty: the package is its bench.
