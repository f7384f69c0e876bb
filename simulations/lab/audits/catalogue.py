"""The attacks in words, for reports: what each knows, computes and means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    """An attack in words.

    Attributes
    ----------
    knows : str
        What it starts from.
    computes : str
        What it does with it.
    means : str
        What success would mean.
    default : str
        What stands against it in the default, and what the attack is then given instead.
    source : str
        Where it is from.
    remains : str
        What is documented to remain; empty if nothing is.
    """

    knows: str
    computes: str
    means: str
    default: str
    source: str
    remains: str = ""


_MASKED = (
    "By default what a party sends is masked. The attack is then given the masked vector, read as "
    "the numbers that it would be without its mask"
)
_DISTANCES = (
    "A hospital gets the distances of its own patients to landmarks that it does not know, hence "
    "the distances between them: documented in docs/fed-cg.md."
)

ATTACKS: Mapping[str, Attack] = {
    "gradient inversion": Attack(
        "Every client's reply of a round, the parameters that it was taken at, and the public "
        "random features.",
        "A gradient of one sample is its feature vector times a number: sines and cosines give "
        "the phases, these the row and the label, exactly. Of a network the gradient of the first "
        "layer is the row times that of the biases.",
        "The server has the features and the label of a client's sample.",
        f"{_MASKED}; without the mask the same numbers give the sample away.",
        "Follows from eq. 9 of Ghari and Shen, NeurIPS 2022; networks: Phong et al., IEEE TIFS "
        "2018, section 3.",
        "The sum over the cohort of a round, see docs/security.md.",
    ),
    "sum inversion": Attack(
        "The sum of each round, which the server opens, and what every client was asked.",
        "A kernel that only one client chose holds that client's plain gradient in the sum; one "
        "sample explains it.",
        "The server has samples in spite of the masks, though it cannot tell whose they are.",
        "By default all clients send all kernels (or the same ones), so that no number of a sum "
        "belongs to one client.",
        "Follows from eq. 9 of Ghari and Shen, NeurIPS 2022.",
        "Sums in which no kernel is one client's: see the joint inversion.",
    ),
    "joint inversion": Attack(
        "The sum of a round, the parameters that it was taken at, the public random features and "
        "the number of samples behind it.",
        "Rows and labels that explain all released numbers, by least squares: wide kernels first, "
        "whose phases do not wrap, from several starts.",
        "The server has all samples of a round with their labels, though it cannot tell whose they "
        "are.",
        "By default a round releases fewer numbers than there are unknowns behind them. The attack "
        "is given those numbers and the same effort. A row counts as recovered if its label and "
        "all of its columns, scaled as the model has them, are right to 0.001.",
        "Follows from eq. 9 of Ghari and Shen, NeurIPS 2022; solver: Transtrum and Sethna, 2012.",
        "What is computed is pulled a little towards the true rows: of ten rows the nearest is the "
        "one behind the sum more often than one time in ten, see docs/audit.md.",
    ),
    "membership in a sum": Attack(
        "The sum of a round, rows with their labels of which one may be behind it, and others of "
        "the same kind.",
        "The vector that a row would add is compared with the sum, both less their means and "
        "weighted by the inverse covariance of such vectors.",
        "The server can test whether a row that it has at hand was learned from, and in which "
        "round.",
        "By default as in any run: the rule of counting bounds what can be computed and does not "
        "prevent this. More samples per message with as many numbers leave less of it.",
        "Homer et al., PLoS Genetics 2008; ratio of likelihoods: Carlini et al., 2022.",
        "Membership of rows in a sum, also on the default, see docs/online-methods.md.",
    ),
    "trilateration": Attack(
        "Distances of rows to landmarks, and the landmarks.",
        "Differences of distances are linear in the row: more landmarks than features give every "
        "row exactly.",
        "Whoever looks has the features.",
        f"{_MASKED}, and the true landmarks as a present, which nobody has by default.",
        "Follows from eq. 2.9 of Damiani, Rodina and Decherchi, 2024.",
    ),
    "secret widths": Attack(
        "Distances times a secret width per landmark, and the landmarks.",
        "Combinations of landmarks in which rows cancel are linear in the widths: these follow, "
        "then the rows.",
        "The paper's countermeasure, a secret width per landmark, does not hide features.",
        f"{_MASKED}, and the true landmarks as a present.",
        "Follows from eq. 4.1 of Damiani, Rodina and Decherchi, 2024.",
    ),
    "SVD distances": Attack(
        "Distances of rows to landmarks that nobody tells.",
        "A singular value decomposition gives rows up to a linear map, the means of the distances "
        "the map up to a rotation: hence all distances among rows.",
        "Whoever looks has the rows up to a motion, without any landmark.",
        f"{_MASKED}.",
        "Metric unfolding: Schönemann, Psychometrika 35, 1970; when it is unique: Connelly, "
        "Gortler and Theran, 2021.",
        _DISTANCES,
    ),
    "quadric distances": Attack(
        "Distances times unknown widths, to unknown landmarks.",
        "The columns span (|x|^2, x, 1); the rows lie on one quadric, whose form is the distance.",
        "Whoever looks has the distances among rows but for their unit.",
        f"{_MASKED}.",
        "Follows from eq. 4.1 of Damiani, Rodina and Decherchi, 2024.",
        _DISTANCES,
    ),
    "labels": Attack(
        "Labels in plain, a residual with noise between 0 and 1, or a message of the label owner.",
        "The noise does not change on which side of 1/2 a label is; the signs of the owner's first "
        "message are the labels.",
        "Whoever looks has the labels.",
        f"{_MASKED}.",
        "Follows from Algorithm 1 of Damiani, Rodina and Decherchi, 2024, and from section 3.3 of "
        "Jia, Guo and Fang, 2019.",
        "In a vertical split of HierarchicalSVM users learn the labels of their own rows from the "
        "owner's messages: documented in docs/hierarchical-svm.md.",
    ),
    "membership": Attack(
        "K^T K, which the server opens, and the kernels of candidates, which a hospital gets with "
        "their predictions.",
        "A row of K has a leverage of at most one in K^T K; another has more, and more than is "
        "usual for rows like it.",
        "Server and hospital together can tell whom the model was learned from.",
        "By default as in any run: the sum is what the method needs. With many rows per landmark "
        "little is left of it.",
        "Leverage by Sherman and Morrison; comparison with the usual: Carlini et al., 2022.",
        "Membership of candidates, most with fewer rows than landmarks, see docs/fed-cg.md.",
    ),
    "normal matrix": Attack(
        "Products K^T K p of one hospital for known p, or its kernel.",
        "Directions that span the space give K^T K of that hospital.",
        "The server has a single hospital's aggregate, from which few patients can be told.",
        f"{_MASKED}.",
        "Follows from Algorithms 1 and 2 of Damiani, Rodina and Decherchi, 2024.",
        "K^T K summed over all hospitals, exactly: what the method computes with.",
    ),
    "gradient of the model": Attack(
        "The model, and one's own rows.",
        "The model solves the equations of all: what one's own rows leave of them is the others'.",
        "A hospital has an aggregate of all other hospitals; of a single other one exactly its.",
        "It is what the model says: with two hospitals nothing hides it.",
        "Follows from eq. 2.9 of Damiani, Rodina and Decherchi, 2024.",
        "With two hospitals, K^T (K a - y) of the other one: an aggregate of its patients. Of a "
        "single patient it would be the patient.",
    ),
    "LP inference": Attack(
        "omega^T x + b as a real number, with b from [0, 2 pi), and the directions omega.",
        "Every number bounds omega^T x from both sides: the middle of all x that keep to the "
        "bounds, by a linear programme.",
        "Another party's columns, which Theorem 7 of the paper says cannot be inferred.",
        "By default numbers are angles under masks and directions are private. The attack is given "
        "the masked vectors as angles, and the true directions as a present.",
        "Follows from Definition 6 and Algorithm 3 of Gu et al., KDD 2020.",
    ),
    "differences of sums": Attack(
        "omega^T x + b of many rows with the same b; for rows themselves also the directions.",
        "b cancels in differences of rows: these follow by least squares, their lengths without "
        "any direction.",
        "Another party's rows, but for one row that must be known, or distances among them.",
        "As above: masked vectors as angles, true directions as a present.",
        "Follows from Algorithm 3 of Gu et al., KDD 2020.",
    ),
    "two trees": Attack(
        "Sums of omega^T x + b that pass up one tree, and of b that pass up the other.",
        "Where both are of the same parties, one is taken from the other.",
        "omega^T x of other parties, which two totally different trees are to prevent.",
        "By default there are no trees: one masked vector is taken from another.",
        "Lemma 2 of Gu et al., KDD 2020, fails.",
    ),
    "phase differences": Attack(
        "Phases omega^T x + b modulo a turn, which an active party gets by design, and directions.",
        "Whole turns are found by lattice reduction; differences of rows follow.",
        "The active party reads off the others' columns.",
        "By default directions are private. An active party tries directions drawn from public "
        "seeds and from its own secret; a passive party with the server is given masked vectors.",
        "Follows from section 3.2 of Gu et al., KDD 2020; lattices: Lenstra, Lenstra and Lovász, "
        "1982.",
        "The active party learns the geometry of the others' rows, see the next two.",
    ),
    "distances of phases": Attack(
        "The phases of an active party, without directions.",
        "The mean cosine of differences of phases is the kernel, hence distances.",
        "The active party has the distances among the others' rows.",
        "It is the model's input: the active party must be entitled to it.",
        "Rahimi and Recht, NIPS 2007.",
        "Distances among the others' rows: documented in docs/fdskl.md.",
    ),
    "known records": Attack(
        "The phases of an active party, and d + 1 complete records.",
        "Phases give the rows up to an affine map; known records fix it.",
        "The active party has all rows, if it knew some of them.",
        "It is the model's input: the active party must be entitled to it.",
        "Follows from Algorithm 3 of Gu et al., KDD 2020.",
        "All rows to whoever knows d + 1 of them: documented in docs/fdskl.md.",
    ),
    "rare items": Attack(
        "The matrix of how many users have each pair of items, and which items a single user has.",
        "The row of an item with one user is that user's profile.",
        "Everybody who gets the matrix has the profile.",
        "By default items that fewer than five rows have are not summed. The row of the item with "
        "the fewest users is read instead.",
        "Follows from section 2 of Polato, Gallinaro and Aiolli, ESANN 2021.",
        "Exact counts of items that five rows or more have, by themselves and in pairs.",
    ),
    "cohort differences": Attack(
        "Sums over sets of nodes that change from round to round, and who was in which.",
        "A linear system: as many rounds as nodes give each node's counts exactly, fewer give them "
        "with noise.",
        "The server has what a single node counted, which may be one user.",
        "By default each node is in one sum and refuses a second. What a sum without the others "
        "would be is the node's masked vector: that is read instead.",
        "Follows from section 3.1 of Polato, Gallinaro and Aiolli, ESANN 2021.",
        "Two runs over the same users are two looks: documented in docs/secure-gram.md.",
    ),
    "whole matrix": Attack(
        "The whole matrix.",
        "Of users: vectors x for which K - x x^T stays positive semidefinite are searched, taken "
        "off, and the search goes on. Of features: the matrix shows rows up to a rotation.",
        "Everybody who gets the matrix has profiles.",
        "With two rows per item or more the same search finds nothing it could rely on.",
        "Fincke and Pohst, Mathematics of Computation 44, 1985.",
        "A matrix of fewer than two rows per item shows profiles, one of features the geometry of "
        "all rows: documented in docs/secure-gram.md, and refused in a deployment unless allowed.",
    ),
    "masked matrix": Attack(
        "Every party's products.",
        "Inner products are distances among rows at that party.",
        "The server has the geometry of one party's columns.",
        f"{_MASKED}.",
        "Follows from section 2 of Polato, Gallinaro and Aiolli, ESANN 2021.",
    ),
    "noisy requests": Attack(
        "Which rows of the matrix a user asks for.",
        "What is asked for more often is liked.",
        "The server has what a user likes.",
        "By default every user gets the whole matrix and asks for nothing.",
        "Follows from section 3.2 of Polato, Gallinaro and Aiolli, ESANN 2021.",
    ),
    "single models": Attack(
        "A single user's model in an iteration.",
        "rho (w - z + r) is the sum of the gradients of the user's rows; of one row it is the row.",
        "Whoever looks has a single user's sum of gradients, of few rows the rows.",
        f"{_MASKED}.",
        "Follows from eq. 8 of Jia, Guo and Fang, IEEE TNSE 2019, and Forero, Cano and Giannakis, "
        "JMLR 2010.",
        "The sum over all users of a group, which its agent and its users know: documented in "
        "docs/hierarchical-svm.md.",
    ),
    "neighbours in a ring": Attack(
        "What an agent received and what it passed on, known to the agents before and behind it.",
        "The difference is its term.",
        "Two agents together have the sums of the group between them.",
        "By default agents mask in pairs. The agent's masked vector is read instead.",
        "Follows from section 3.2 of Jia, Guo and Fang, IEEE TNSE 2019.",
        "All agents but one together have the last one's term, in any topology.",
    ),
    "late rows": Attack(
        "The sums of a group's gradients in all iterations.",
        "Where one row alone changes, the change is that row.",
        "An agent has single rows of its users.",
        "It follows from sums that an agent needs: form large groups, or use logistic models.",
        "Follows from the dual of the hinge loss.",
        "Single rows of small groups in late iterations of the hinge: documented in "
        "docs/hierarchical-svm.md.",
    ),
    "orthogonal product": Attack(
        "The vectors that a user says are orthogonal to its columns.",
        "A true column is orthogonal to them, in any units; a wrong guess is not.",
        "An agent can test guesses of columns.",
        "By default products are computed at the users and no vectors are sent. The user's masked "
        "outputs take their place.",
        "Follows from section 3.3 of Jia, Guo and Fang, IEEE TNSE 2019.",
    ),
    "inner products": Attack(
        "Messages of the label owner, and their answers.",
        "Messages that span the columns give all inner products of rows.",
        "The label owner has the rows up to a rotation.",
        "It is what the label owner computes with: it must be entitled to it.",
        "Follows from the subspace method in fedkern_flwr/solvers/dual_subspace.py.",
        "The geometry of all rows: documented in docs/hierarchical-svm.md.",
    ),
}
