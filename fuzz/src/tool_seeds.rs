//! Inputs of the target of sequences of tools. Each step has three bytes: its kind, the caller or
//! node, and a number.

/// Returns the inputs.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let input = |steps: &[[u8; 3]]| steps.concat();
    // All agents handle their messages, twice: first groups, then launches.
    let all: [[u8; 3]; 6] = [[16, 0, 9], [16, 1, 9], [16, 2, 9], [16, 0, 9], [16, 1, 9], [16, 2, 9]];
    let started = |steps: &[[u8; 3]]| [&[[0, 0, 3]][..], &all, steps].concat().concat();
    vec![
        // Jobs of both users run, print, and end; the operator lists them.
        started(&[
            [1, 1, 3],
            [16, 0, 9],
            [16, 1, 9],
            [20, 0, 40],
            [19, 0, 0],
            [6, 2, 0],
            [6, 1, 0],
            [11, 0, 0],
        ]),
        // Callers attend, leave, signal and cancel jobs of their own and of others.
        started(&[
            [2, 1, 0],
            [2, 0, 0],
            [3, 0, 0],
            [22, 0, 60],
            [5, 0, 12],
            [5, 1, 12],
            [4, 1, 0],
            [4, 0, 0],
        ]),
        started(&[
            [3, 0, 0],
            [22, 0, 200],
            [2, 0, 0],
            [4, 2, 0],
            [16, 0, 9],
            [16, 1, 9],
            [11, 0, 0],
            [2, 1, 0],
        ]),
        // A user sends many signals while an agent is away.
        started(&[[14, 0, 0], [5, 129, 12], [22, 0, 40], [15, 0, 0], [16, 0, 99], [16, 0, 99]]),
        // Long output of a job whose caller does not read.
        started(&[
            [20, 0, 255],
            [20, 0, 254],
            [20, 0, 253],
            [20, 0, 252],
            [20, 0, 251],
            [20, 0, 250],
            [16, 0, 9],
        ]),
        // Nodes are drained, leave, are lost, and return.
        started(&[
            [7, 2, 0],
            [0, 0, 1],
            [7, 2, 1],
            [7, 5, 2],
            [14, 1, 0],
            [22, 0, 255],
            [15, 1, 0],
            [12, 1, 0],
        ]),
        started(&[
            [14, 0, 0],
            [22, 0, 8],
            [15, 0, 0],
            [13, 1, 0],
            [12, 1, 0],
            [22, 0, 99],
            [8, 2, 0],
            [9, 2, 0],
        ]),
        // Commands of any length.
        input(&[
            [0, 253, 1],
            [0, 254, 1],
            [16, 0, 9],
            [16, 1, 9],
            [16, 2, 9],
            [16, 0, 9],
            [16, 1, 9],
            [16, 2, 9],
        ]),
        // Ranks of another launcher form a group.
        input(&[[21, 36, 0], [21, 37, 1], [16, 0, 9], [16, 1, 9], [21, 12, 1], [21, 15, 0], [22, 0, 99]]),
        // Agents report groups of an earlier controller, and nonsense.
        input(&[[13, 0, 0], [12, 0, 196], [22, 0, 50], [4, 2, 3], [21, 33, 212], [22, 0, 255], [6, 2, 0]]),
        started(&[[21, 0, 0], [21, 3, 0], [21, 6, 0], [21, 9, 0], [21, 12, 0], [21, 15, 0], [21, 21, 0]]),
        // Traces and diagnoses of a cluster with silent agents.
        input(&[[9, 2, 0], [9, 2, 0], [9, 0, 0], [10, 0, 0], [8, 2, 0], [8, 1, 0], [22, 0, 20], [9, 2, 0]]),
    ]
}
