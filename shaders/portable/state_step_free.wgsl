// Last states of a step that no run has to take back.

fn may_write() -> bool {
    return true;
}
