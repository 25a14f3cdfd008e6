// Language extension of cooperative matrices. It precedes all declarations.
enable wgpu_cooperative_matrix;
