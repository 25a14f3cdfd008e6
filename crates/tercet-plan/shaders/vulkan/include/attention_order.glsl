// Tile order of attention workgroups. Tiles iterate over different numbers of keys. Tiles with the
// most keys run first, interleaved over TOGETHER heads. The operands of these heads then stay in
// the cache, and only short tiles run at the end.

const uint TOGETHER = 32;

// Workgroups per head.
#ifndef OF_HEAD
#define OF_HEAD p.tiles
#endif

// Head index over all batch entries, and tile index; tile 0 has the most keys.
uvec2 take_tile(uint flat_group) {
    uint heads = p.groups / OF_HEAD;
    uint first = flat_group / (TOGETHER * OF_HEAD) * TOGETHER;
    uint count = min(TOGETHER, heads - first);
    uint at = flat_group - first * OF_HEAD;
    return uvec2(first + at % count, at / count);
}
