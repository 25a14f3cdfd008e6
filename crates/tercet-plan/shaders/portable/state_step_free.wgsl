// Unchecked state write: stores the last states of a step without reading data-check records.

fn may_write() -> bool {
    return true;
}
