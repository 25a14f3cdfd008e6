//! Test cases of matmuls with their neighbours in a layer: a norm before, a gate or a sum after.
//! Executors fuse these. The cases cover one, few and many rows.
