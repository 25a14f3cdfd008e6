//! A builder of small models: one F32 input `x`, one result `y`.

use prost::Message;
use tercet_onnx::proto::*;

/// A model under construction.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) graph: GraphProto,
    opset: i64,
    functions: Vec<FunctionProto>,
}

fn text(s: &str) -> Option<String> {
    Some(s.to_string())
}

fn info(name: &str, elem_type: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| DimensionProto {
        dim_value: d.parse().ok(),
        dim_param: d.parse::<i64>().is_err().then(|| d.to_string()),
    };
    let shape = Some(TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
    });
    let tensor = TensorTypeProto {
        elem_type: Some(elem_type),
        shape,
    };
    let value = Some(TypeValue::Tensor(tensor));
    ValueInfoProto {
        name: text(name),
        r#type: Some(TypeProto { value }),
    }
}

impl Model {
    pub(crate) fn new(dims: &[&str]) -> Model {
        let graph = GraphProto {
            input: vec![info("x", 1, dims)],
            output: vec![ValueInfoProto {
                name: text("y"),
                r#type: None,
            }],
            ..GraphProto::default()
        };
        Model {
            graph,
            opset: 18,
            functions: Vec::new(),
        }
    }

    pub(crate) fn opset(mut self, opset: i64) -> Model {
        self.opset = opset;
        self
    }

    pub(crate) fn node(mut self, node: MadeNode) -> Model {
        self.graph.node.push(node.proto);
        self
    }

    pub(crate) fn int_input(mut self, name: &str, len: usize) -> Model {
        self.graph.input.push(info(name, 7, &[&len.to_string()]));
        self
    }

    /// Adds an input.
    pub(crate) fn input(mut self, name: &str, elem_type: i32, dims: &[&str]) -> Model {
        self.graph.input.push(info(name, elem_type, dims));
        self
    }

    /// Adds an initializer with raw bytes.
    pub(crate) fn raw(self, name: &str, elem_type: i32, dims: &[i64], bytes: &[u8]) -> Model {
        self.initializer(TensorProto {
            name: text(name),
            data_type: Some(elem_type),
            dims: dims.to_vec(),
            raw_data: Some(bytes.to_vec().into()),
            ..TensorProto::default()
        })
    }

    pub(crate) fn output(mut self, name: &str) -> Model {
        self.graph.output.push(ValueInfoProto {
            name: text(name),
            r#type: None,
        });
        self
    }

    pub(crate) fn initializer(mut self, tensor: TensorProto) -> Model {
        self.graph.initializer.push(tensor);
        self
    }

    pub(crate) fn ints(self, name: &str, dims: &[i64], values: &[i64]) -> Model {
        self.initializer(TensorProto {
            name: text(name),
            data_type: Some(7),
            dims: dims.to_vec(),
            int64_data: values.to_vec(),
            ..TensorProto::default()
        })
    }

    pub(crate) fn function(
        mut self,
        name: &str,
        input: &[&str],
        output: &[&str],
        node: Vec<NodeProto>,
    ) -> Model {
        let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        self.functions.push(FunctionProto {
            name: text(name),
            domain: text("local"),
            input: owned(input),
            output: owned(output),
            node,
            ..FunctionProto::default()
        });
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let model = ModelProto {
            ir_version: Some(9),
            graph: Some(self.graph.clone()),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(self.opset),
            }],
            functions: self.functions.clone(),
            ..ModelProto::default()
        };
        model.encode_to_vec()
    }
}

/// A node under construction.
pub(crate) struct MadeNode {
    pub(crate) proto: NodeProto,
}

pub(crate) fn node(op: &str, input: &[&str], output: &[&str]) -> MadeNode {
    let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
    let proto = NodeProto {
        op_type: text(op),
        input: owned(input),
        output: owned(output),
        ..NodeProto::default()
    };
    MadeNode { proto }
}

impl MadeNode {
    pub(crate) fn with(mut self, attr: AttributeProto) -> MadeNode {
        self.proto.attribute.push(attr);
        self
    }

    pub(crate) fn named(mut self, name: &str) -> MadeNode {
        self.proto.name = text(name);
        self
    }

    pub(crate) fn of(mut self, domain: &str) -> MadeNode {
        self.proto.domain = text(domain);
        self
    }
}

pub(crate) fn attr_int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: text(name),
        i: Some(i),
        r#type: Some(2),
        ..AttributeProto::default()
    }
}

pub(crate) fn attr_text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        name: text(name),
        r#type: Some(3),
        s: Some(value.as_bytes().to_vec().into()),
        ..AttributeProto::default()
    }
}

pub(crate) fn attr_ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: text(name),
        ints: ints.to_vec(),
        r#type: Some(7),
        ..AttributeProto::default()
    }
}
