//! tercet-ir
