// Language extensions of cooperative matrices with F16 operands. They precede all declarations.
enable wgpu_cooperative_matrix;
enable f16;
