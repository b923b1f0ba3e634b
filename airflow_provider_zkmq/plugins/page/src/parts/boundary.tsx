/** Keeps the page alive where a view breaks. */
import { Component, type ComponentChildren } from "preact";

interface Properties {
  children: ComponentChildren;
}

export class Boundary extends Component<Properties, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static override getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <div class="notice tone-bad" role="alert">
        <p>This view broke: {String(this.state.error)}</p>
        <button type="button" class="button" onClick={() => location.reload()}>
          Load the page again
        </button>
      </div>
    );
  }
}
