    // Parameters of windows.glsl: windows on three spatial axes. Columns are the windows of one
    // batch entry after the other; the results of entries are c_entry apart in C. Strides of x, and
    // strides of taps in x.
    uint windows;
    uint c_entry;
    uint channels;
    uint x_batch;
    uint x_channel;
    uint x_deep;
    uint x_row;
    uint x_col;
    uint tap_d;
    uint tap_h;
    uint tap_w;
    uint size_d;
    uint size_h;
    uint size_w;
    uint out_h;
    uint out_w;
    uint stride_d;
    uint stride_h;
    uint stride_w;
    uint dilation_d;
    uint dilation_h;
    uint dilation_w;
    uint pad_d;
    uint pad_h;
    uint pad_w;
