// Which tile a workgroup takes. Tiles walk differently far, those that walk far come first: of TOGETHER heads at a time, so that
// what these read stays near, and only short ones are left at the end.

const uint TOGETHER = 32;

// Workgroups of a head.
#ifndef OF_HEAD
#define OF_HEAD p.tiles
#endif

// The head, of all batch entries, and the tile: the first of those that walk far is 0.
uvec2 take_tile(uint flat_group) {
    uint heads = p.groups / OF_HEAD;
    uint first = flat_group / (TOGETHER * OF_HEAD) * TOGETHER;
    uint count = min(TOGETHER, heads - first);
    uint at = flat_group - first * OF_HEAD;
    return uvec2(first + at % count, at / count);
}
