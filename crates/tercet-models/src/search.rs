//! Semantic search in a folder: an index of embeddings on disk, and nearest-neighbour queries.
//!
//! An index is one safetensors file. The file has `vectors` F32 `[n, width]` of unit length. For texts
//! the file also has `lines` I32 `[n, 2]`, the first and last line of each passage, from 1. It has
//! `bytes` I32 `[n, 2]` too, the range of the passage in its file. A passage that is longer than the model reads is
//! cut into overlapping pieces. The header has JSON with the model, the folder and its files. An index
//! has no text; the content of search results is read from the folder. Files are written atomically,
//! so the index is always complete.
//!
//! | file | content |
//! |---|---|
//! | `files.rs` | the files of a folder, and their passages |
//! | `index.rs` | the index: reading, writing, searching |
//! | `indexer.rs` | incremental update of an index |
//! | `embedder.rs` | the embedding model, and the digest that identifies it |

mod embedder;
pub(crate) mod files;
mod index;
mod indexer;

pub use crate::error::SearchError;
pub use embedder::{SearchQuery, Searcher};
pub use files::IndexUnit;
pub use index::{Hit, PassageState, SearchIndex, SearchSettings};
pub use indexer::{IndexProgress, IndexStats, Indexer};
