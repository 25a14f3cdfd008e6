//! Gradients against central differences, and what cannot be differentiated.

mod graphs;
mod oracle;
