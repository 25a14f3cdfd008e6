    uint repeats; // row r of the sorted rows has row r / repeats of A
    uint tile_count; // entries of the table of tiles
    uint rows_at; // offset of the sorted rows in the table, in words
